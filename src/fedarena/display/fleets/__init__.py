"""Fleets in pictures: phones, how hard they are, and what samplers of them do."""
