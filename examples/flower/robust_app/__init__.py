"""A Flower app whose server trusts no client."""
