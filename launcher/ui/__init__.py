"""What a person sees: tables, numbers with their units, and the view of a running job."""
