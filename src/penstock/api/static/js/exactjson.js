// Parses JSON without rounding integers. Timestamps and bigint cells exceed 2^53, where JavaScript's numbers are
// no longer exact; such integers become strings of their digits.

const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const INTEGER = /^-?\d{16,}$/;

/** Parse JSON; throws SyntaxError as JSON.parse does. */
export function parseExact(text) {
  return JSON.parse(text.replace(TOKENS, (token) => (lost(token) ? `"${token}"` : token)));
}

function lost(token) {
  return INTEGER.test(token) && !Number.isSafeInteger(Number(token));
}
