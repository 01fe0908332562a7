"""What the adapters share: how a module's inputs are described, how it is called, what its loss is."""
