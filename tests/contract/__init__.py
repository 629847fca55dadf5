"""The contract of the API, rule by rule. README.md says which test proves which rule."""
