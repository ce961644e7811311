"""Generation: a canvas of known and masked positions, the model's predictions for them, and samplers that fill them."""
