"""Federations of graphs: readers of published files, and graphs cut into the subgraphs of clients.

A sample is a graph, of at most as many nodes and edges as its federation says: ``x`` has the features of its nodes, and
``edges`` the numbers of the two nodes of every edge. An edge is there once, whichever way it goes, and every node has
one to itself, so that a place without an edge is no node. What fills ``edges`` up is a number that no node has.

Where nodes are to be classified, a client has one graph, and a sample of it for every part: the same nodes and edges,
with the labels of the nodes of that part.
"""
