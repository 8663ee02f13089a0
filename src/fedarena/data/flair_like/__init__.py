"""What `flair_like` is made of: a stand-in for FLAIR whose users, labels and pictures the tool makes up.

Nothing here is from FLAIR but the statistics that its authors published (`published.json`). Everything is a pure
function of the seed, the user and the image, so that any user can be drawn alone.
"""
