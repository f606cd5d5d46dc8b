"""The client: an ordinary FedAvg client, with hooks for those configured to attack (see `hostile`)."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from robust_app import hostile
from robust_app.task import TRAIN, Net, client_data, evaluate, train

app = ClientApp()


@app.train()
def on_train(message: Message, context: Context) -> Message:
    """Train for one pass over the client's images, starting from the global model."""
    torch.set_num_threads(1)
    client, crew = int(context.node_config["partition-id"]), hostile.attackers(context)
    attack, source = crew.get(client, ""), hostile.source(client, crew)
    net, before = Net(), message.content["arrays"].to_torch_state_dict()
    net.load_state_dict(before)
    images, labels = client_data(source)
    number = int(message.content["config"]["server-round"])
    loss = train(
        net, images, hostile.learned(labels, attack), float(context.run_config["client-lr"]), 100 * source + number
    )
    arrays = hostile.sent(dict(net.state_dict()), before, attack, 100 * client + number)
    metrics = hostile.claimed({"loss": loss, "num-examples": TRAIN}, attack)
    reply = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)})
    return Message(reply, reply_to=message)


@app.evaluate()
def on_evaluate(message: Message, context: Context) -> Message:
    """Return the loss and accuracy of the global model on the client's images."""
    torch.set_num_threads(1)
    client = int(context.node_config["partition-id"])
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss, accuracy = evaluate(net, *client_data(client))
    if hostile.attackers(context).get(client) == "nan":
        loss = float("nan")
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": TRAIN})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
