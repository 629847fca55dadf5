"""Distributed tensors: torch operations of one program, run on every rank of a mesh.

From the client to the ranks: active_mesh (which mesh) -> dispatch (one operation) -> channel and
driver (numbers, batches, messages) -> worker and runner (on a rank). See
`docs/explanation/tensors.md`. Only this package and `spmd` import torch; nothing below imports this
package before a program activates a mesh.
"""
