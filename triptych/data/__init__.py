"""From raw files to batches of token ids.

sources -> tokenize -> shards                           once, by `triptych tokenize`
shards  -> mix -> sequences -> pack -> steps -> loader   during training
"""
