"""What all kinds of somebody's own data share: tables, labels of any kind, who has what, where the store goes."""
