"""What all pictures and pages share: colours, marks, panels, units, HTML."""
