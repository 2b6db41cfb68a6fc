import 'reflect-metadata';
import { parse } from 'acorn';
import type { FunctionExpression, Pattern, Program } from 'acorn';
import { lockParams } from '../decorators/lock-param.js';

type Names = readonly (string | undefined)[];

/** Where Nest keeps what its own parameter decorators were given, on the constructor, for each method. */
const NEST_PARAMETERS = '__routeArguments__';
/** Part of the keys that stand for custom decorators: what those are given means something else. */
const NEST_CUSTOM_PARAMETER = '__customRouteArgs__';

/** Short names that people give. Minifiers give a single letter, and two of them only behind some fifty other names. */
const SHORT_WORDS: readonly string[] = ['id', 'ip', 'no', 'pk', 'to'];

/**
 * The index of the parameter that a template means by a name: the one that `@LockParam` gives that name; else the one
 * whose own decorator of Nest does, `@Param('id')` for example; else the one that is called so in the source.
 *
 * @returns or, as a string, why there is none, and what to do
 */
export function parameterIndex(
  name: string,
  target: object,
  propertyKey: string | symbol,
  method: (...args: never[]) => unknown,
): number | string {
  const source = readSource(method);
  const given = lockParams(target, propertyKey);
  const levels: [what: string, names: Names][] = [
    ['@LockParam', given],
    ["Nest's parameter decorators", namesInDecorators(target, propertyKey)],
    ['its source', source?.names ?? []],
  ];
  const advice = `name the parameter by @LockParam('${name}'), or write <0> for the first one`;
  const restAt = (index: number) =>
    'is the rest of the arguments, and a template takes a single value; ' +
    `lock by a function of them, or write <${index}> for the first one`;
  for (const [what, names] of levels) {
    const index = names.indexOf(name);
    if (index === -1) continue;
    if (names.lastIndexOf(name) !== index) return `binds to two parameters, by ${what}; ${advice}`;
    // The rest of the arguments of a function that a decorator put there says nothing about the method's own.
    if (names === given && source?.isMethod && source.rest?.index === index) return restAt(index);
    if (names === source?.names && name.length <= 2 && !SHORT_WORDS.includes(name)) {
      return (
        'has a name so short that minifiers give it to another parameter; ' +
        `name the parameter by @LockParam('${name}'), or write <${index}>`
      );
    }
    return index;
  }
  if (source?.rest?.name === name) return restAt(source.rest.index);
  if (source === undefined) return `binds to nothing, since the method's source cannot be read; ${advice}`;
  return `binds to no parameter; ${advice}`;
}

/**
 * The index of a parameter that a template names by its position.
 *
 * @returns or, as a string, that the method certainly has no parameter there
 */
export function parameterAt(
  position: number,
  target: object,
  propertyKey: string | symbol,
  method: (...args: never[]) => unknown,
): number | string {
  const source = readSource(method);
  if (source === undefined || source.rest || source.usesArguments) return position;
  // A decorator may have put a function of fewer parameters in the place of the method.
  const emitted = Reflect.getOwnMetadata('design:paramtypes', target, propertyKey) as unknown[] | undefined;
  const lists = [
    source.names,
    emitted ?? [],
    lockParams(target, propertyKey),
    namesInDecorators(target, propertyKey),
  ];
  const count = Math.max(...lists.map(({ length }) => length));
  if (position < count) return position;
  const has = count === 0 ? 'none' : count === 1 ? 'one, <0>' : `${count}, from <0> to <${count - 1}>`;
  return `is beyond the parameters of the method, which has ${has}`;
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

/** What a function's source says about its parameters. */
interface Source {
  /** undefined for one without a single name, such as a destructured one */
  readonly names: Names;
  /** `...ids` */
  readonly rest: { readonly index: number; readonly name: string | undefined } | undefined;
  /** Whether it is written as a method, and not as a function that a decorator could have put in the method's place. */
  readonly isMethod: boolean;
  /** Whether it may look at arguments that no parameter stands for. */
  readonly usesArguments: boolean;
}

/** @returns undefined when the source is not to be had, or cannot be read */
export function readSource(method: (...args: never[]) => unknown): Source | undefined {
  const text = Function.prototype.toString.call(method);
  const parsed = parseFunction(text);
  if (parsed === undefined) return undefined;
  const { params, isMethod } = parsed;
  const index = params.findIndex(({ type }) => type === 'RestElement');
  const last = params[index];
  const rest = last?.type === 'RestElement' ? { index, name: nameOf(last.argument) } : undefined;
  return { names: params.map(nameOf), rest, isMethod, usesArguments: /\b(arguments|eval)\b/.test(text) };
}

/**
 * A method's source is no expression by itself: `async book(id) {}` stands only inside an object or class. And there
 * `function (id) {}` would be a method of that name.
 */
function parseFunction(source: string): { params: Pattern[]; isMethod: boolean } | undefined {
  for (const code of [`(${source})`, `({${source}})`]) {
    for (const sourceType of ['module', 'script'] as const) {
      try {
        const program: Program = parse(code, { ...TOLERANT, sourceType });
        const [statement] = program.body;
        if (statement?.type !== 'ExpressionStatement') continue;
        const { expression } = statement;
        if (expression.type !== 'ObjectExpression') {
          return { params: (expression as FunctionExpression).params, isMethod: false };
        }
        const [property] = expression.properties;
        if (property?.type !== 'Property') return undefined;
        return { params: (property.value as FunctionExpression).params, isMethod: true };
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error;
      }
    }
  }
  return undefined;
}

function nameOf(pattern: Pattern): string | undefined {
  if (pattern.type === 'AssignmentPattern') return nameOf(pattern.left);
  return pattern.type === 'Identifier' ? pattern.name : undefined;
}
