// Plots format numbers in the browser's language. WebKit gives that of a system without one, such as
// a kiosk that was started with LANG=C, as "C", which nothing can format numbers in.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, 'language', { value: 'en' });
}
