// The session: a token that is kept until the tab is closed. It is not a cookie, so no other page can use it.

const KEY = "penstock.token";
const SIGN_IN = /^#token=([\x21-\x7e]+)$/;

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

  /**
   * Begin with the token of a sign-in link (#token=...), if the address is one; say whether it is. The token
   * leaves the address at once, so that no history, bookmark or copied address has it.
   */
  beginFromLink(win) {
    const found = SIGN_IN.exec(win.location.hash);
    if (found === null) return false;
    win.history.replaceState(null, "", win.location.pathname + win.location.search);
    this.begin(found[1]);
    return true;
  }
}
