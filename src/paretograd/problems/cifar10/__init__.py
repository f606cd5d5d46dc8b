"""CIFAR-10 (Krizhevsky, 2009), its split over federated clients, and the paper's network."""

from paretograd.problems.cifar10.data import Cifar10, Images, load_cifar10
from paretograd.problems.cifar10.model import cnn
from paretograd.problems.cifar10.partition import Partition, partition

__all__ = ["Cifar10", "Images", "Partition", "cnn", "load_cifar10", "partition"]
