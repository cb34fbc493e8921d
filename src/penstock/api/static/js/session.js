// The session: a token that is kept until the tab is closed. It is not a cookie, so no other page can use it.

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
