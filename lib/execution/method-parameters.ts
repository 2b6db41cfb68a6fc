import { parse } from 'acorn';
import type { FunctionExpression, ObjectExpression, Pattern, Program } from 'acorn';

/** Private names belong to a class that is not in sight, and so do `super` and `import.meta` to their places. */
const TOLERANT = { ecmaVersion: 'latest', checkPrivateFields: false, allowSuperOutsideMethod: true } as const;

/**
 * Names of a function's parameters as its source has them; undefined for one without a single name, such as a
 * destructured one.
 *
 * @returns undefined when the source is not to be had, or cannot be read
 */
export function parameterNames(
  method: (...args: never[]) => unknown,
): readonly (string | undefined)[] | undefined {
  return parametersOf(Function.prototype.toString.call(method))?.map(nameOf);
}

/** A method's source is no expression by itself: `async book(id) {}` stands only inside an object or class. */
function parametersOf(source: string): Pattern[] | undefined {
  for (const code of [`({${source}})`, `(${source})`]) {
    for (const sourceType of ['module', 'script'] as const) {
      try {
        const program: Program = parse(code, { ...TOLERANT, sourceType });
        const [statement] = program.body;
        if (statement?.type !== 'ExpressionStatement') continue;
        const { expression } = statement;
        if (expression.type === 'ObjectExpression') return paramsOfMethod(expression);
        return (expression as FunctionExpression).params;
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error;
      }
    }
  }
  return undefined;
}

function paramsOfMethod({ properties: [property] }: ObjectExpression): Pattern[] | undefined {
  return property?.type === 'Property' ? (property.value as FunctionExpression).params : undefined;
}

function nameOf(pattern: Pattern): string | undefined {
  if (pattern.type === 'AssignmentPattern') return nameOf(pattern.left);
  return pattern.type === 'Identifier' ? pattern.name : undefined;
}
