"""An index in this process: a mapping, scans, many keys at once, asyncio."""

import asyncio

import dmtree

with dmtree.Pool.embedded(memory="64MiB") as pool:
    users = pool.create("users")
    users["ada"] = "1815"
    users.update({"alan": "1912", "barbara": "1939", "edsger": "1930"})

    print("ada was born in", users["ada"].decode())
    print("a to b:", [key.decode() for key in users.keys("a", "b")])
    print("the last two:", list(users.items(reverse=True, limit=2)))
    print("many:", dmtree.get_many(users, ["alan", "grace"]))

    # A value that another thread or process has changed meanwhile is not overwritten.
    print("replaced:", users.compare_and_set("ada", "1815", "1815-12-10"))

    async def visits():
        index = users.asynchronous()
        await asyncio.gather(*(index.put(f"visit {n:03}", str(n)) for n in range(100)))
        return await index.get("visit 042")

    print("visit 42:", asyncio.run(visits()))
    print("keys:", len(users))
