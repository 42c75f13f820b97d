// Plots format numbers in the language of the browser. WebKit gives that of a system without one,
// such as a kiosk that was started with LANG=C, as "C", which numbers have no form in.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, 'language', { value: 'en' });
}
