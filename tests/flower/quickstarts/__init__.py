"""ClientApps in the forms of Flower's quickstarts, written anew, without data to download.

Each module has a ClientApp ``app`` and ``initial()``, the arrays with which its ServerApp begins.
"""
