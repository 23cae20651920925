"""`millrace bench start`: how soon a newcomer sees a decision, an adapter, and the end of the demo."""
