/** What `gradscope.presentation.page` writes into a page; the types of the scripts. */

type Cell = boolean | number | string | null | Cell[];

interface ColumnContent {
  heading: string;
  group: string;
  kind: string;
  about: string;
  priority: number;
}

interface TableContent {
  title: string;
  columns: ColumnContent[];
  cells: Cell[][];
  keys: number[][];
  notes: string[];
}

interface LineContent {
  label: string;
  direction: string;
  keys: number[];
  values: Cell[];
}

interface MarkContent {
  at: number;
  text: string;
  key?: number;
}

interface DepthContent {
  title: string;
  /** What the numbers are, as the vertical axis says. */
  unit: string;
  names: string[];
  lines: LineContent[];
  marks?: MarkContent[];
}

interface TensorsContent {
  keys: number[];
  columns: { name: string; kind: string; cells: Cell[] }[];
  octaves: (number[] | null)[];
}

interface Side {
  name: string;
  tensors: TensorsContent;
  /** Of a candidate: the number of its key for that of the reference, where they differ; null where none is as that. */
  counterparts?: Record<string, number | null>;
}

interface BlocksContent {
  names: string[];
  parents: number[];
  keys: number[][];
  words: string[];
  columns: { name: string; kind: string; cells: Cell[] }[];
  flow: number[][];
}

interface GraphContent {
  /** For the number of each key, the numbers of those that it is computed from. */
  sources: Record<string, number[]>;
}

interface RunContent {
  name: string;
  steps: number[];
  /** Columns that are known of the same steps, the loss of all and the others of recorded ones. */
  curves: { steps: number[]; columns: { name: string; values: Cell[] }[] }[];
  keys: number[];
  sizes: (number | null)[];
  /** What is known of each tensor beside its numbers. */
  about: Record<string, string>[];
  /** The statistics that are packed one after the other: a plane of tensors by steps for each. */
  packed: string[];
  /** Where they begin among the packed numbers of the page. */
  offset: number;
  octave_parts: number;
  alarms: { step: number; rule: string; why: string; key: number | null }[];
  /** The families whose statistics the columns of a group show. */
  groups: Record<string, string[]>;
  /** By step, for each tensor the exponent of its first octave and the counts from there. */
  histograms: { step: number; octaves: (number[] | null)[] }[];
  noise: NoiseContent | null;
}

/** The noise of gradients, packed likewise; its offset is from that of the run. */
interface NoiseContent {
  steps: number[];
  /** The key of each row; null of all parameters together. */
  keys: (number | null)[];
  packed: string[];
  offset: number;
  tables: TableContent[];
}

/** How a run differs from the reference. */
interface DifferenceContent {
  name: string;
  steps: number[];
  largest: Cell[];
  first: number | null;
  /** The number of the candidate's key for that of the reference, where they differ; null where it has no such tensor. */
  counterparts: Record<string, number | null>;
  tables: TableContent[];
}

interface Content {
  kind: "dump" | "comparison" | "run";
  keys: string[];
  sets: { name: string; tables: TableContent[] }[];
  depth: DepthContent[];
  blocks?: BlocksContent;
  sides?: Side[];
  graph?: GraphContent;
  /** For a source, the number of the first line and the lines. */
  sources?: Record<string, [number, string[]]>;
  runs?: RunContent[];
  differences?: DifferenceContent[];
}
