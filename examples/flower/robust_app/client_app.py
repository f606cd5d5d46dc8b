"""The client: plain FedAvg's, and a few lines for those that are told to attack."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from paretograd.federated import attacks
from robust_app.task import TRAIN, Net, client_data, evaluate, train

app = ClientApp()


@app.train()
def on_train(message: Message, context: Context) -> Message:
    """One pass over the client's images from the global model."""
    torch.set_num_threads(1)
    client = int(context.node_config["partition-id"])
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = client_data(client)
    seed = 100 * client + int(message.content["config"]["server-round"])
    loss = train(net, images, labels, float(context.run_config["client-lr"]), seed)
    metrics = MetricRecord({"loss": loss, "num-examples": TRAIN})
    reply = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    attack = attack_of(client, context)
    return Message(corrupted(reply, message.content["arrays"], attack, seed) if attack else reply, reply_to=message)


@app.evaluate()
def on_evaluate(message: Message, context: Context) -> Message:
    """Loss and accuracy of the global model on the client's images."""
    torch.set_num_threads(1)
    client = int(context.node_config["partition-id"])
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss, accuracy = evaluate(net, *client_data(client))
    if attack_of(client, context) == "nan":
        loss = float("nan")
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": TRAIN})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def attack_of(client: int, context: Context) -> str:
    """The attack of a client, which for honest ones is none: the first word is the last client's."""
    words = str(context.run_config["attacks"]).split()
    place = int(context.node_config["num-partitions"]) - 1 - client
    return words[place] if place < len(words) else ""


def corrupted(reply: RecordDict, start: ArrayRecord, attack: str, seed: int) -> RecordDict:
    """The reply that an attacker sends in place of an honest one."""
    model, before = reply["arrays"].to_torch_state_dict(), start.to_torch_state_dict()
    if attack == "shape":
        model["head.bias"] = model["head.bias"][:-1]
    elif attack == "keys":
        model["backdoor"] = model.pop("head.bias")
    elif attack == "boast":
        reply["metrics"]["num-examples"] = 10**12
    else:
        move(model, before, attack, seed)
    reply["arrays"] = ArrayRecord(model)
    return reply


def move(model: dict[str, torch.Tensor], before: dict[str, torch.Tensor], attack: str, seed: int) -> None:
    """Replace the update, the global model minus the client's, by the row that the attack adds to it."""
    names = [name for name, _ in Net().named_parameters()]
    update = torch.cat([(before[name] - model[name]).flatten() for name in names])[None]
    generator = torch.Generator().manual_seed(seed)
    rows = {
        "sign-flip": lambda: attacks.sign_flip(update, 0, generator),
        "zero": lambda: attacks.zero_update(update),
        "scaled": lambda: attacks.scaled_update(update),
        "nan": lambda: attacks.nan_update(update),
    }
    if attack not in rows:
        raise ValueError(f"attacks={attack!r}: use {', '.join(rows)}, shape, keys or boast")
    parts = rows[attack]()[-1].split([before[name].numel() for name in names])
    for name, part in zip(names, parts, strict=True):
        model[name] = before[name] - part.view_as(before[name])
