"""Peers in their best form, and the profile that every comparison with a peer has to pass."""
