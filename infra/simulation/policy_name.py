"""What `millrace simulate --policy` takes; apart, as the command line loads it for its help."""

from typing import Literal

PolicyName = Literal["auction", "published", "titan", "eft", "ntm", "fixed-price"]
"""`published` is the auction as it is printed: its payment, its order and its search."""
