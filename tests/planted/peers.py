"""Planted bugs of what is measured beside our layers."""

from planted import Bug

PEERS, PRODUCTS = "measure/peers.py", "measure/products.py"
OF_PEERS, OF_PRODUCTS = "tests/measure/test_peers.py", "tests/measure/test_products.py"

BUGS = [
    Bug("the convolution stays", PEERS, "layer.self.conv_kernel_size = None", "pass", OF_PEERS),
    Bug("rows come before tokens", PEERS, "module(x.transpose(0, 1)).transpose(0, 1)", "module(x)", OF_PEERS),
    Bug("a package is asked for by its module", PEERS, "install {package}", "install {module}", OF_PEERS),
    Bug("products lie as made", PRODUCTS, ", tensor.stride(),", ", tensor.contiguous().stride(),", OF_PRODUCTS),
    Bug("no gradients", PRODUCTS, "self.calls.append(", "args[0].grad_fn and self.calls.append(", OF_PRODUCTS),
    Bug("all is a product", PRODUCTS, "if func.overloadpacket.__name__ in PRODUCTS:", "if True:", OF_PRODUCTS),
]  # fmt: skip
