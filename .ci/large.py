"""All four wrappers on operands and results beyond 2**31 elements: on the GPU, or under the interpreter.

Operands are strided views of one tensor of 2**31 + 2**20 elements, of which little is touched. Results
beyond 2**31 elements (the last rows are compared) and sides of more than 65,535 tiles, what a grid's second
axis holds, are made on a GPU alone.
"""
import scripts
import torch

ROWS, WALK = (2**26, 1), (1, 45691142)  # the last row, the last k, start beyond 2**31
base = torch.empty(2**31 + 2**20, dtype=torch.float16, device=scripts.DEVICE)


def draw(rows, columns, stride=None):
    """Values from {-1, 0, 1}, contiguous or as a view of base."""
    x = torch.randint(-1, 2, (rows, columns), device=scripts.DEVICE).half()
    return x if stride is None else base.as_strided((rows, columns), stride).copy_(x)


for script, product in scripts.PRODUCTS.items():
    for name, a, b in [
        ("rows of a", (33, 16, ROWS), (16, 24)),
        ("k of a", (16, 48, WALK), (48, 24)),
        ("k of b", (24, 48), (48, 16, WALK[::-1])),
        ("columns of b", (24, 16), (16, 33, ROWS[::-1])),
    ]:
        a, b = draw(*a), draw(*b)
        torch.testing.assert_close(product(a, b), (a.double() @ b.double()).half(), rtol=0, atol=0)
        print(f"{script}: {name} beyond 2**31, exact")
    if scripts.DEVICE == "cuda" and script != "01":  # whose grid ends at 2**31
        a, b = draw(65600, 16), draw(16, 32800)
        exact = (a[-64:].double() @ b.double()).half()
        torch.testing.assert_close(product(a, b)[-64:], exact, rtol=0, atol=0)
        print(f"{script}: C beyond 2**31, exact")
    if scripts.DEVICE == "cuda":
        side = 70_000 if script == "01" else 65_537 * 128
        for M, N in (side, 2), (2, side):
            a, b = draw(M, 16), draw(16, N)
            torch.testing.assert_close(product(a, b), (a.float() @ b.float()).half(), rtol=0, atol=0)
            print(f"{script}: {M} x {N}, exact")
