"""The transactional client: TiKV's protocol, asyncio inside, blocking and async faces."""
