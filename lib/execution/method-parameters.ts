import { parse } from 'acorn';
import type { FunctionExpression, ObjectExpression, Pattern, Program } from 'acorn';

/**
 * Names of a function's parameters as its source has them; undefined for one without a single name, such as a
 * destructured one. Empty for a function whose source is not to be had.
 */
export function parameterNames(method: (...args: never[]) => unknown): readonly (string | undefined)[] {
  const source = Function.prototype.toString.call(method);
  return parametersOf(source)?.map(nameOf) ?? [];
}

/** A method's source is no expression by itself: `async book(id) {}` stands only inside an object or class. */
function parametersOf(source: string): Pattern[] | undefined {
  for (const code of [`({${source}})`, `(${source})`, `({${source.replace(/^static\s/, '')}})`]) {
    try {
      const program: Program = parse(code, { ecmaVersion: 'latest' });
      const [statement] = program.body;
      if (statement?.type !== 'ExpressionStatement') continue;
      const { expression } = statement;
      return expression.type === 'ObjectExpression'
        ? paramsOfMethod(expression)
        : (expression as FunctionExpression).params;
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
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
