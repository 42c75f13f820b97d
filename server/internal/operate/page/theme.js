// The theme is set before anything is drawn, so that a dark page does not flash.
{
  const chosen = localStorage.getItem('shivad.theme');
  const dark = chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
}
