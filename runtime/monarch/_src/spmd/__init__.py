"""SPMD programs on a mesh: elastic environment, process groups, scripts as torchrun runs them."""
