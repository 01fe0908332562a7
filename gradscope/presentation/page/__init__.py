"""Pages are reports in a browser: one file that needs nothing else, of a dump, a comparison, a series or a run.

- `dump_page`, `comparison_page` and `run_page` make a `Page` (`page_parts`) of facts: what people read without
  JavaScript, and *content*, the JSON and the packed numbers that the page's own scripts show.
- `content` writes tables, tensors, the tree of layers, and statistics over steps as content.
- `static_html` writes tables and notes as HTML, `html_page` the file, `notebook` what a notebook shows of an object.
- `script/` has the page's own styles and JavaScript modules: `page.js` shows what `views/` make of layers, tensors and
  runs, with `charts/` and `tables/`; `data/` unpacks the content, and `parts/` has what all of them use: elements,
  texts, the address, files that are saved. `uplot/` is the library that draws lines, with its licence.

What the browser gets:

- It requests nothing. The page has a content security policy that allows its own scripts and styles, by their hashes,
  and nothing else: no connection, image, frame or form, and no code from data.
- Data is never markup. What is known before it runs is escaped by `static_html`. All else is JSON, compressed and in
  base64, so that no name in it can end the element that holds it; scripts show it as text nodes only. Control
  characters and bidirectional marks are shown as escapes, as on a terminal.
- It is at most 25 MB. What is large is summarised before it is written, never by the browser; what was left out is
  said on the page.

Why one library and no framework (2026-11): the page of 3,000 tensors takes half a second with uPlot (53 kB) and a
table of our own, and needs no build step; other libraries of charts took two to five seconds and 1 to 5 MB.
Why modules are rewritten (2026-11): a page that is opened from disk can import nothing. The modules are checked as the
modules that they are; `html_page` writes each as a function, and its imports as constants.
"""
