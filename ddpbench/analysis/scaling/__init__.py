"""How far a configuration scales: its curve over world sizes, laws fitted to it, and what to ask a centre for."""
