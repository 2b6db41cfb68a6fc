/** All there is to measure, in the order in which it is shown. */
import { commits } from './commit.js';
import { decorators } from './decorator.js';
import { many } from './many.js';
import { sections } from './sections.js';

export const scenarios = [...many, ...sections, ...commits, ...decorators];
