"""The Transformer that every implementation plugs into; in: a preset or a config and an implementation, out:
a ``torch.nn.Module``.
"""
