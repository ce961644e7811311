"""From raw samples to batches of token ids.

sources -> tokenize -> shards                           once, `triptych tokenize`
shards  -> mix -> sequences -> pack -> loader -> Batch  while training
"""
