"""Names that other systems' programs use."""
