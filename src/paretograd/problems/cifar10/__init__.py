"""CIFAR-10 (Krizhevsky, 2009), its split over federated clients, and the paper's network."""

from paretograd.problems.cifar10.data import Cifar10, Images, Partition, load_cifar10, partition
from paretograd.problems.networks import cnn

__all__ = ["Cifar10", "Images", "Partition", "cnn", "load_cifar10", "partition"]
