"""What an attention problem is and what an implementation promises. Imports nothing else of attnbench."""
