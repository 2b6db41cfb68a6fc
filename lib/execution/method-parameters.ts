import 'reflect-metadata';
import { parse } from 'acorn';
import type { FunctionExpression, ObjectExpression, Pattern, Program } from 'acorn';
import { lockParams } from '../decorators/lock-param.js';

type Names = readonly (string | undefined)[];

/** Where Nest keeps what its own parameter decorators were given, on the constructor, for each method. */
const NEST_PARAMETERS = '__routeArguments__';
/** Part of the keys that stand for custom decorators: what those are given means something else. */
const NEST_CUSTOM_PARAMETER = '__customRouteArgs__';

/**
 * The index of the parameter that a template means by a name: the one that `@LockParam` gives that name; else the one
 * whose own decorator of Nest does, `@Param('id')` for example; else the one that is called so in the source.
 *
 * @returns or, as a string, why there is none
 */
export function parameterIndex(
  name: string,
  target: object,
  propertyKey: string | symbol,
  method: (...args: never[]) => unknown,
): number | string {
  const sourceNames = namesInSource(method);
  const levels: [what: string, names: Names][] = [
    ['@LockParam', lockParams(target, propertyKey)],
    ["Nest's parameter decorators", namesInDecorators(target, propertyKey)],
    ['its source', sourceNames ?? []],
  ];
  for (const [what, names] of levels) {
    const index = names.indexOf(name);
    if (index === -1) continue;
    return names.lastIndexOf(name) === index ? index : `binds to two parameters, by ${what}`;
  }
  if (sourceNames === undefined) return "binds to nothing, since the method's source cannot be read";
  return 'binds to no parameter';
}

function namesInDecorators(target: object, propertyKey: string | symbol): Names {
  const parameters = Reflect.getOwnMetadata(NEST_PARAMETERS, target.constructor, propertyKey) as
    Record<string, { index: number; data?: unknown }> | undefined;
  const names: (string | undefined)[] = [];
  for (const [key, { index, data }] of Object.entries(parameters ?? {})) {
    if (!key.includes(NEST_CUSTOM_PARAMETER) && typeof data === 'string') names[index] = data;
  }
  return names;
}

/** Private names belong to a class that is not in sight, and so do `super` and `import.meta` to their places. */
const TOLERANT = { ecmaVersion: 'latest', checkPrivateFields: false, allowSuperOutsideMethod: true } as const;

/**
 * Names of a function's parameters as its source has them; undefined for one without a single name, such as a
 * destructured one.
 *
 * @returns undefined when the source is not to be had, or cannot be read
 */
export function namesInSource(method: (...args: never[]) => unknown): Names | undefined {
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
