"""Layouts: how axes are ordered, and how one tensor is made of others that are stored differently."""
