"""Publishing: the variants of a model that a loader asks for, each one tried before it is named."""
