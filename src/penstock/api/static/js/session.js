// Who is signed in: a token that lives as long as the tab. It is no cookie, so no other page can use it.

const KEY = "penstock.token";

export class Session {
  constructor(storage) {
    this.storage = storage;
  }

  get token() {
    return this.storage.getItem(KEY);
  }

  begin(token) {
    this.storage.setItem(KEY, token);
  }

  end() {
    this.storage.removeItem(KEY);
  }
}
