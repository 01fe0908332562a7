"""By use are the layouts of values that their own elements do not settle, by what makes them and what reads them.

- `kernel_rows`: what layers return, in the order of features that their kernels have.
- `layout_use`: whether what reads an activation bears out the layout that its values suggest.
- `merged_order`: whether positions that are merged into one axis are used in the order that their values suggest.
"""
