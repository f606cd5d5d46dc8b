"""Rules with optimizers: does a guarantee for the real update give better losses in the same time?"""
