"""LEAF's JSON files: {users, num_samples, user_data: {user: {x, y}}, hierarchies}, read and written."""
