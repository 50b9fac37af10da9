"""The Transformer that every implementation plugs into: config and implementation in, a module out."""
