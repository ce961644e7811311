"""Generation: a canvas of known and masked positions, what the model proposes for them, and samplers that choose."""
