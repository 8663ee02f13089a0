"""Pictures of somebody's own: folders, archives, tables of paths and arrays as federations."""
