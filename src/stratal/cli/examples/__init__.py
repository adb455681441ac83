"""Programs as a user would write them; the commands run them, and their lines count as the user's own."""
