"""What every Antiphon service shares; imports no torch and no numpy."""
